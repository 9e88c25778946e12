"""HTTPS, and gRPC with TLS, by a certificate that openssl makes: its clients are urllib and Triton's."""

import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
import warptape as wt
from time_limits import seconds
from warptape.serve import Server

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs openssl")


def certificate(folder):
    """Files of a certificate for this machine and of its key."""
    files = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = [OPENSSL, "req", *kind, *names, "-out", files[0], "-keyout", files[1]]
    subprocess.run(command, check=True, capture_output=True)
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


def get(url, context):
    with urllib.request.urlopen(url, timeout=seconds(60), context=context) as reply:
        return reply.status, json.loads(reply.read())


def test_https_and_grpc(files):
    certificate, key = files
    limits = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with Server({"double": wt.nn.Identity()}, port=0, grpc_port=0, **limits) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=certificate)
        assert get(server.url + "/v2/models/double", trusting)[1]["name"] == "double"
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(server.url + "/livez", ssl.create_default_context())
        with pytest.raises(OSError):
            get(server.url.replace("https", "http") + "/livez", None)
        grpc = pytest.importorskip("tritonclient.grpc")
        address = f"127.0.0.1:{server.grpc_port}"
        client = grpc.InferenceServerClient(address, ssl=True, root_certificates=str(certificate))
        assert client.is_server_live() and client.is_model_ready("double")
        client.close()


def test_one_file_with_both(files, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text("".join(file.read_text() for file in files))
    with Server({"double": wt.nn.Identity()}, port=0, tls_certificate=str(both)) as server:
        get(server.url + "/v2/models/double", ssl.create_default_context(cafile=files[0]))


def test_wrong_files(files, tmp_path):
    certificate_of_another, key_of_another = certificate(tmp_path)
    double = {"double": wt.nn.Identity()}
    with pytest.raises(OSError, match=r"missing.pem: .*No such file"):
        Server(double, port=0, tls_certificate=str(tmp_path / "missing.pem"))
    with pytest.raises(OSError, match=r"TLS by .*certificate\.pem and .*key\.pem"):
        Server(double, port=0, tls_certificate=str(files[0]), tls_key=str(key_of_another))
    with pytest.raises(OSError, match="TLS by"):  # a certificate without its key
        Server(double, port=0, tls_certificate=str(certificate_of_another))
    with pytest.raises(ValueError, match="tls_key needs tls_certificate"):
        Server(double, port=0, tls_key=str(files[1]))
