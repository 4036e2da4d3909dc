"""Do a thing as often as told, and print what came of each."""

import sys

import ravi_otel


@ravi_otel.tool
def work():
    return "did"


for _ in range(int(sys.argv[1])):
    try:
        print(work())
    except ravi_otel.BudgetExhaustedError as error:
        print("refused by the", error.scope, error)
