"""Images are built from `docker/` and proved: the same commit, lock and base give the same manifest digest.

`bases` reads what `docker/` declares, `context` makes what a build may see, `engine` is the seam to the `docker`
program, `build` plans and builds, `oci` reads an image's bytes and `compare` two of them, `sbom` lists what is inside.
`container` runs a program in an image, on any host, through the docker SDK; `verify` judges what it says.
"""
