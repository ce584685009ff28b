cd $BUNDLE
exec python3.12 -m pip download --only-binary :all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none $(cat platforms) "$@"
