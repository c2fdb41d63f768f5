"""An environment worker starts without what models need."""

import subprocess
import sys


def test_an_environment_worker_loads_no_torch():
    program = "import sys, rollart.cluster.env_actor; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"


def test_an_engine_loads_neither_tokenizers_nor_training():
    heavy = "{'transformers', 'rollart.training.trainer'} & sys.modules.keys()"
    program = f"import sys, rollart.cluster.engine_actor; print({heavy})"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "set()\n"
