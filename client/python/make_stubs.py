"""The gRPC stubs of the client package, from the protos: of the repository, or of the source distribution."""

import atexit
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE / "src" / "ripplekv"
_checkout = None


def proto_folder():
    for folder in (HERE / "proto", HERE.parents[1] / "proto"):
        if (folder / "ripplekv" / "v1").is_dir():
            return folder
    raise FileNotFoundError(f"no protos: neither {HERE / 'proto'} nor {HERE.parents[1] / 'proto'} has ripplekv/v1")


def copy_protos(folder):
    shutil.copytree(proto_folder() / "ripplekv", folder / "ripplekv", ignore=lambda _, names: [
        name for name in names if pathlib.Path(name).suffix not in ("", ".proto")
    ])  # fmt: skip


def make_stubs(folder):
    """Writes ripplekv/v1 under `folder`."""
    import grpc_tools
    from grpc_tools import protoc

    protos = proto_folder()
    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    folder.mkdir(parents=True, exist_ok=True)
    done = protoc.main([
        "protoc", f"-I{protos}", f"-I{well_known}", f"--python_out={folder}", f"--pyi_out={folder}",
        f"--grpc_python_out={folder}", *sorted(map(str, (protos / "ripplekv" / "v1").glob("*.proto"))),
    ])  # fmt: skip
    if done != 0:
        raise RuntimeError(f"the protos in {protos} do not compile")
    (folder / "ripplekv" / "v1" / "__init__.py").touch()


def use_checkout():
    """Makes `import ripplekv` mean this checkout's package with stubs of this checkout's protos, whatever is installed."""
    global _checkout
    if _checkout is None:
        assert "ripplekv" not in sys.modules, "use_checkout() comes before the first import of ripplekv"
        _checkout = tempfile.mkdtemp(prefix="ripplekv-python-")
        atexit.register(shutil.rmtree, _checkout, ignore_errors=True)
        shutil.copytree(PACKAGE, pathlib.Path(_checkout) / "ripplekv", ignore=shutil.ignore_patterns("__pycache__"))
        make_stubs(pathlib.Path(_checkout))
        sys.path.insert(0, _checkout)
    return _checkout
