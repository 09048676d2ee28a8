#!/bin/sh
# Puts the small model into the volume of models, unless the model that is wanted is there.
set -eu
wanted="/models/$STATETAP_MODEL"
if [ -f "$wanted/config.json" ]; then
    exit 0
fi
if [ ! -d "/opt/models/$STATETAP_MODEL" ]; then
    echo "statetap: there is no $STATETAP_MODEL in the folder of models; copy it there, or mend STATETAP_MODEL and STATETAP_MODELS in .env" >&2
    exit 3
fi
# Under another name first: a half-copied model is never found.
rm -rf "$wanted.new"
cp -r "/opt/models/$STATETAP_MODEL" "$wanted.new"
mv "$wanted.new" "$wanted"
echo "statetap: $STATETAP_MODEL is in the folder of models now"
