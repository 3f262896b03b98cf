# Python and a compiler, where the base has none: PACKAGES from SOURCES, with nothing left that a clock has touched.
# With no PACKAGES the base is taken as it is, and has to have them. What goes wrong is said in one line "dflash: ...".
set -eu
umask 022

if [ -n "$PACKAGES" ]; then
    export DEBIAN_FRONTEND=noninteractive
    printf '%s\n' "$SOURCES" > /tmp/sources.list
    # The base's own sources are left out: they are of today.
    only="-o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=/dev/null -o Acquire::Retries=3"
    apt-get $only update || { echo "dflash: the archive of packages can not be read" >&2; exit 1; }
    apt-get $only install -y --no-install-recommends $PACKAGES ||
        { echo "dflash: $PACKAGES could not be installed" >&2; exit 1; }
    rm -rf /tmp/sources.list /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/lib/dpkg/*-old \
        /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
    find /usr/lib/python3* -name __pycache__ -prune -exec rm -rf {} +
fi

command -v python3 > /dev/null || { echo "dflash: the base has no python3" >&2; exit 1; }
# torch.compile: inductor calls g++, Triton compiles against Python's headers with gcc.
if grep -q '^torch==' /run/environment/requirements.lock; then
    for program in gcc g++; do
        command -v $program > /dev/null || { echo "dflash: the base has no $program, which torch.compile needs" >&2; exit 1; }
    done
    headers=$(python3 -ISBc 'import sysconfig; print(sysconfig.get_paths()["include"])')
    [ -f "$headers/Python.h" ] || { echo "dflash: the base has no Python.h, which Triton needs" >&2; exit 1; }
fi
