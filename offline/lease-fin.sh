cp $HOME/red.log $HOME/pool.log $HOME/study.log $OUT/
(cd $HOME/red && tar czf $OUT/red.tgz exploits.jsonl troubles.jsonl summary.json report.html)
(cd $HOME/pool && tar czf $OUT/pool.tgz */results.json)
(cd $HOME/gsm/out && tar czf $OUT/gsm.tgz --exclude='*.safetensors' --exclude='*.pt' --exclude=checkpoints .)
ls -la $OUT
