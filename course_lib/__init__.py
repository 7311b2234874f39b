"""Inside PyTorch: what a notebook imports.

    from course_lib import check, hint, predict, passing, progress

The names are looked up on first use, so that `python -m course_lib` starts without PyTorch.
"""
# A Python that is too old reads this file before `__main__` can say so: keep to what every Python knows.

__all__ = ["check", "hint", "passing", "predict", "progress", "record_race", "solution"]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from course_lib import session

    # All of them at once: importing session has bound `progress` to the module course_lib/progress.py.
    globals().update((public, getattr(session, public)) for public in __all__)
    return globals()[name]


def __dir__():
    return sorted(set(globals()) | set(__all__))
