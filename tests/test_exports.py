"""The public names: few, sorted, importable and documented."""

import importlib
import subprocess
import sys

import pytest

import unspool

PACKAGES = ("unspool", "unspool.sinks", "unspool.stages", "unspool.errors")


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_holds_no_name_twice(package):
    names = importlib.import_module(package).__all__
    assert names == sorted(set(names))


def test_public_names_are_few():
    assert len(unspool.__all__) <= 25


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_documented(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        public = getattr(module, name)
        assert not hasattr(public, "__path__"), f"{package}.{name} is a module, which hides what it should be"
        assert (public.__doc__ or "").strip(), f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_the_public_names(package):
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))


def test_public_names_can_be_imported_by_star():
    namespace = {}
    exec("from unspool import *", namespace)
    assert set(unspool.__all__) <= set(namespace)


def test_importing_a_module_of_the_same_name_hides_nothing():
    for home in {home for home in sys.modules if home.startswith("unspool.")} | {
        "unspool.cli",
        "unspool.stages.prefill",
    }:
        importlib.import_module(home)
    assert callable(unspool.generate)
    assert callable(unspool.prefill)


def test_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert unspool.__version__ == version("unspool")


@pytest.mark.parametrize("package", ["unspool", "unspool.sinks"])
def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        importlib.import_module(package).nonsense  # noqa: B018


def test_import_is_light():
    code = "import sys, unspool; print(*sorted({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
