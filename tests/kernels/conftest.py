import kernel_interpreter
import pytest


@pytest.fixture(scope="session")
def interpreter():
    """Calls a function of kernel_interpreter where Triton interprets."""
    with kernel_interpreter.pool(interpret=True, workers=1) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


@pytest.fixture(scope="session")
def compilers():
    """Processes in which Triton compiles."""
    with kernel_interpreter.pool(interpret=False, workers=2) as pool:
        yield pool
