"""Call a tool as often as told, one after the other, and print what each call gives: no client is imported, which takes a while."""

import sys

import ravi_otel


@ravi_otel.tool
def greet():
    return "hello there"


for _ in range(int(sys.argv[1])):
    print(greet())
