"""`python3 -m course_lib`: refuses a Python that the course cannot use, else runs `course_lib.cli`."""
# A Python that is too old reads this file: no f-strings, no annotations, ASCII only.

import sys

OLDEST = (3, 10)
BEYOND = (3, 14)


def refusal(version):
    """What to tell somebody who runs the course with this (major, minor), or None where it will do."""
    if OLDEST <= version < BEYOND:
        return None
    age = "old" if version < OLDEST else "new"
    return (
        "course_lib: Python %d.%d is too %s for this course.\n"
        "  Why:        it needs Python %d.%d to %d.%d, the versions that it is tested with.\n"
        "  What to do: install one of these from python.org, conda or your system's packages,\n"
        "              then run the course with it, for example: python3.12 -m course_lib\n"
        "              (on Windows: py -3.12 -m course_lib)\n"
    ) % (version + (age,) + OLDEST + (BEYOND[0], BEYOND[1] - 1))


if __name__ == "__main__":
    message = refusal(tuple(sys.version_info[:2]))
    if message:
        sys.stderr.write(message)
        sys.exit(2)
    from course_lib.cli import main

    sys.exit(main())
