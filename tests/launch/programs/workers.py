"""Call from up to eight processes, started as told, which end in order; print how many calls went through."""

import multiprocessing
import sys

import openai


def ask(number):
    try:
        openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": str(number)}])
    except Exception as error:
        return type(error).__name__
    return "sent"


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(min(8, int(sys.argv[2]))) as pool:
        print(*sorted(pool.map(ask, range(int(sys.argv[2])), chunksize=1)))
        pool.close()
        pool.join()  # the end of the block would kill them, and with them what they did just now and have not written
