# check=skip=InvalidDefaultArgInFrom
# An image that trains: a base by digest; Python and a compiler; the lock's environment; the project's code. Each is a
# layer, the one that changes most often last. `./inv build` gives all arguments and the context, which is not this
# folder (dflash/images/context.py says what is in it). README.md beside this file says why it is as it is.
ARG BASE
# Where the environment's files come from: `wheels`, a folder, with no network; or `index`.
ARG FILES

FROM ${BASE} AS tools
ARG PACKAGES=""
ARG SOURCES=""
RUN --mount=type=bind,source=tools,target=/run/tools \
    --mount=type=bind,source=environment,target=/run/environment \
    sh /run/tools/packages.sh

FROM tools AS environment-wheels
ARG PYTHON
ARG BASE_DIGEST
RUN --network=none \
    --mount=type=bind,source=tools,target=/run/tools \
    --mount=type=bind,source=environment,target=/run/environment \
    --mount=type=bind,from=wheels,target=/run/wheels \
    sh /run/tools/environment.sh --no-index --find-links /run/wheels

FROM tools AS environment-index
ARG PYTHON
ARG BASE_DIGEST
ARG INDEX_OPTIONS=""
# The index's address may hold a password: a secret is in no layer and no history.
RUN --mount=type=bind,source=tools,target=/run/tools \
    --mount=type=bind,source=environment,target=/run/environment \
    --mount=type=secret,id=index,target=/run/secrets/index \
    sh /run/tools/environment.sh ${INDEX_OPTIONS}

FROM environment-${FILES}
# By hand: useradd would write today's date into /etc/shadow.
RUN echo "dflash:x:10001:10001::/home/dflash:/usr/sbin/nologin" >> /etc/passwd && \
    echo "dflash:x:10001:" >> /etc/group && \
    install -d -o 10001 -g 10001 /home/dflash /work

COPY project/ /opt/dflash/

# Bytecode is kept out of the layers, whose bytes it would change, but not out of a running container.
ENV PATH=/opt/env/bin:${PATH} \
    PYTHONPYCACHEPREFIX=/home/dflash/.cache/pycache
USER 10001:10001
WORKDIR /opt/dflash
# What follows the image's name is run as it is, word for word. A base's own entry point (CUDA's prints a banner on
# standard output) is gone with this.
ENTRYPOINT ["/bin/sh", "-c", "exec \"$@\"", "sh"]
CMD ["python", "-m", "dflash", "--list"]

ARG ENVIRONMENT
ARG LOCK
ARG COMMIT
ARG DIRTY
ARG BASE_NAME
ARG BASE_DIGEST
LABEL org.opencontainers.image.title="dflash ${ENVIRONMENT}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      dflash.environment="${ENVIRONMENT}" \
      dflash.lock="${LOCK}" \
      dflash.dirty="${DIRTY}"
