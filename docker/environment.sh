# Make /opt/env from the lock with the uv that the build was given. Arguments: where uv finds the files.
# No cache is left, no bytecode, nothing of the installation's time and place; hashes decide what is a right file.
set -eu
umask 022
export UV_NO_INSTALLER_METADATA=1 UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never PYTHONDONTWRITEBYTECODE=1
# The index's settings, as this machine has them; only where files come from an index.
[ ! -f /run/secrets/index ] || . /run/secrets/index

/run/tools/uv venv --quiet --no-project --python "$PYTHON" --python-preference only-system /opt/env ||
    { echo "dflash: no environment with Python $PYTHON can be made on this base; uv's lines above say why" >&2; exit 1; }
# --no-build: a source archive would be compiled here, and two compilations need not give the same bytes.
/run/tools/uv pip sync --quiet --python /opt/env/bin/python --no-cache --require-hashes --no-build "$@" \
    /run/environment/requirements.lock ||
    { echo "dflash: the environment can not be made as its lock pins it; uv's lines above say why" >&2; exit 1; }

cd /opt/env
# What `verify` compares with: every RECORD, and what this was made from.
find lib -path '*.dist-info/RECORD' | LC_ALL=C sort | xargs -r sha256sum > dflash-records
{
    bin/python -ISBc 'import sys; print("python", ".".join(map(str, sys.version_info[:3])))'
    echo "lock $(sha256sum < /run/environment/requirements.lock | cut -c-64)"
    echo "spec $(sha256sum < /run/environment/env.yaml | cut -c-64)"
    echo "base $BASE_DIGEST"
    echo "place /opt/env"
} > dflash-stamp
