"""torch.utils.collect_env: what a report of a fault should say of the machine. `jitgrad.doctor()`
has it; `python -m jitgrad.utils.collect_env` prints it."""

from __future__ import annotations

from jitgrad.doctoring import doctor
from jitgrad.missing import missing


def get_pretty_env_info() -> str:
    """Versions, the processor, the compiler, the cache, as text."""
    return str(doctor())


def main() -> None:
    """Prints it."""
    print("Collecting environment information...")
    print(get_pretty_env_info())


__getattr__ = missing(__name__)

if __name__ == "__main__":
    main()
