#!/bin/sh
# Install the torch release that constraints.txt pins.
# Usage: tools/install-torch.sh PYTHON [INDEX]
#
# PyPI's Linux build of torch carries gigabytes of CUDA libraries, which a machine without an NVIDIA
# GPU has no use for. There the CPU build is taken: from a place that pip is already told to look
# (PIP_FIND_LINKS, a mirror), else from PyTorch's own index; PyPI's build is the last resort.
# An INDEX given by hand goes before all that.
set -eu

python=$1
index=${2:-}
torch=$(grep '^torch==' constraints.txt)

install() { "$python" -m pip install -qq --disable-pip-version-check --constraint constraints.txt "$@"; }

if [ -n "$index" ]; then
    install --extra-index-url "$index" "$torch"
elif [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null; then
    install "$torch+cpu" 2>/dev/null ||
        install --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu "$torch+cpu" ||
        { echo "No CPU build of $torch is at hand: taking PyPI's own." >&2 && install "$torch"; }
else
    install "$torch"
fi
