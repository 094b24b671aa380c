# Sourced by the scripts beside it. A client gets a virtual environment of its own below $ENVS, and a server on the
# default model at a free loopback port; the server and what it wrote end with the script.
#
#   PYTHON   an environment with draftproof[serve] (default python3)
#   URL      a server on the default model that runs already; otherwise one is started
#   ENVS     where clients are installed, and found again (default build/interop)
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=${PYTHON:-python3}
ENVS=${ENVS:-$ROOT/build/interop}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORK=$(mktemp -d)
SERVER=
trap 'if [ -n "$SERVER" ]; then kill "$SERVER" && wait "$SERVER" || true; fi; rm -rf "$WORK"' EXIT

# environment NAME PACKAGE...: $BIN is its bin folder; says which versions of the packages it has
environment() {
  BIN=$ENVS/$1/bin
  if [ ! -x "$BIN/python" ]; then
    "$PYTHON" -m venv "$ENVS/$1"
    "$BIN/pip" install --quiet "${@:2}"
  fi
  local names
  names=$(printf '%s|' "${@:2}" | sed 's/\[[a-z]*\]//g; s/[-_]/[-_]/g; s/|$//')
  "$BIN/pip" list 2>/dev/null | grep -iE "^($names) "
}

# serve OPTION...: $URL is the address, $TOKENIZER a folder with the model's tokenizer in the usual files
serve() {
  if [ -z "${URL:-}" ]; then
    "$PYTHON" -m draftproof serve smollm2 --port 0 --k 4 --log-level warning "$@" >"$WORK/server" 2>&1 &
    SERVER=$!
    until grep -q '^listening on ' "$WORK/server"; do
      kill -0 "$SERVER" 2>/dev/null || { cat "$WORK/server"; exit 1; }
      sleep 1
    done
    URL=$(sed -n 's/^listening on //p' "$WORK/server")
  fi
  TOKENIZER=$WORK/tokenizer
  "$PYTHON" - "$TOKENIZER" <<'END'
import json, sys
from pathlib import Path
from draftproof.model.directory import prepare
from draftproof.model.load import default_precision
from draftproof.model.tokenizer import read_files
files, place = read_files(prepare("smollm2", default_precision())), Path(sys.argv[1])
place.mkdir()
files.write(place)
config = {**files.config, "tokenizer_class": "PreTrainedTokenizerFast"}
(place / "tokenizer_config.json").write_text(json.dumps(config))
END
}
