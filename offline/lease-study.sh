# last Qwen piece: convert and start the study
cp carry/part-* $HOME/pieces/
cat > $HOME/study_inner.sh <<'I'
export CUDA_MPS_PIPE_DIRECTORY=$HOME/mps CUDA_MPS_LOG_DIRECTORY=$HOME/mpslog
export PYTHONPATH=$HOME/eq/src:$HOME/site0
mkdir -p $HOME/q; cat $HOME/pieces/part-* > $HOME/q/model.gguf; sha256sum $HOME/q/model.gguf
cd $HOME/q && python3 -c "
import sys; sys.path.insert(0,'$HOME/pieces')
from pathlib import Path
import real_model; real_model.convert(Path('$HOME/q'))"
ln -sfn $HOME/q/hf $HOME/gsm/qwen; date
cd $HOME/gsm && OMP_NUM_THREADS=2 timeout ${2:-1400} python3 -m equipoise study run $HOME/eq/studies/gsm8k.toml --out out --jobs ${3:-2} --minutes $1
I
setsid nohup taskset -c 0-5 bash $HOME/study_inner.sh ${1:-20} 1400 ${2:-2} > $HOME/study.log 2>&1 &
sleep 2; tail -3 $HOME/red.log $HOME/pool.log
