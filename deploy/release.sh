#!/bin/sh
# Writes dist/ from the last commit: sdist, wheel, SBOM (CycloneDX), SHA256SUMS. The same commit gives the same bytes.
#   make release
# The wheel is built from the sdist by the locked hatchling, and then installed with the locked packages in an environment
# of its own, where `esclusa --version` must answer. torch is left out of that: the command starts without it.
set -eu
umask 022
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
sbom=${SBOM:-.venv/bin/cyclonedx-py}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pip="-m pip --quiet --disable-pip-version-check install --require-hashes --only-binary :all:"

echo "Building esclusa $version of $(git log -1 --format=%h) ..."
mkdir "$work/source" "$work/unpacked"
git archive HEAD | tar -x -C "$work/source"
"$python" -m venv "$work/build"
# shellcheck disable=SC2086  # the options are words
"$work/build/bin/python" $pip -r deploy/build.lock
rm -rf dist
(cd "$work/source" && "$work/build/bin/python" -m hatchling build -t sdist -d "$OLDPWD/dist")
tar -x -z -C "$work/unpacked" --strip-components 1 -f "dist/esclusa-$version.tar.gz"
(cd "$work/unpacked" && "$work/build/bin/python" -m hatchling build -t wheel -d "$OLDPWD/dist")
cat deploy/requirements.lock deploy/torch-cpu.lock |
  "$sbom" requirements --pyproject pyproject.toml --output-reproducible --sv 1.6 --of JSON -o "dist/esclusa-$version.cdx.json" -
(cd dist && sha256sum -- *) > "$work/SHA256SUMS"
mv "$work/SHA256SUMS" dist/

echo "Installing it in a fresh environment ..."
"$python" -m venv "$work/fresh"
# shellcheck disable=SC2086
"$work/fresh/bin/python" $pip -r deploy/requirements.lock
"$work/fresh/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --no-index dist/*.whl
"$work/fresh/bin/python" -m pip --disable-pip-version-check check
for package in kernels engine gateway; do
  (cd "$work" && fresh/bin/python -c "from importlib.resources import files; assert (files('$package') / 'py.typed').is_file()")
done
said=$(cd "$work" && fresh/bin/esclusa --version)
[ "$said" = "esclusa $version" ] || { echo "it calls itself \`$said\`, and pyproject.toml \`$version\`"; exit 1; }
cat dist/SHA256SUMS
