"""Certificate authorities and certificates for tests, made by the command openssl."""

import pathlib
import subprocess

import grpc


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Authority:
    """A CA of its own in a folder: `ca` is its certificate."""

    def __init__(self, folder, name="Test CA", days=2):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._key = self.folder / "ca.crt", self.folder / "ca.key"
        self._make("-x509", "-days", days, "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca)

    @staticmethod
    def _make(*arguments):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *arguments)

    def issue(self, name, subject=None, hosts="IP:127.0.0.1,DNS:localhost", days=1):
        """(certificate, key) with that common name, for `hosts`. `subject`: instead of /CN=name."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text(f"subjectAltName={hosts}\n")
        self._make("-subj", subject or f"/CN={name}", "-keyout", key, "-out", request)
        openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", days,
            "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key

    def credentials(self, pair=None):
        """grpc's, that trust this CA and show `pair`."""
        certificate, key = (each.read_bytes() for each in pair) if pair else (None, None)
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, certificate)
