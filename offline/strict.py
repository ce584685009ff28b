import re,sys,pyarrow.parquet as pq
from pathlib import Path
sys.argv=["x","/nonexistent"]
src=open('$REPO/scripts/strict_accuracy.py').read().split('for file in')[0]
exec(src)
tot=bad=0
import json
ref={}
for line in open('$SHARED/data/train/gsm8k.jsonl'):
    r=json.loads(line); ref[r['question'].strip()]=r['answer'].split('####')[-1].strip()

for f in sorted(Path('$WORK/gsm').glob('*/seed-*/rollouts/*.parquet')):
    rows=pq.read_table(f).to_pylist()
    for r in rows:
        tot+=1
        said=r.get('verdict')=='correct'; s=right(r['response'],ref[next(q for q in [r['prompt'].split('\nReason step')[0].strip()])])
        if s!=said:
            bad+=1; print(f, said, s, ref[r['prompt'].split('\nReason step')[0].strip()], repr(r['response'][-160:]))
print(tot,bad)
ev=evb=0
for f in sorted(Path('$WORK/gsm').glob('*/seed-*/evaluations/*.parquet')):
    rows=[r for r in pq.read_table(f).to_pylist() if r['sample']>=0]
    S=[right(r['response'],r['reference']) for r in rows]; V=[r['verdict']=='correct' for r in rows]
    d=sum(a!=b for a,b in zip(S,V)); ev+=len(rows); evb+=d
    up=[(r['reference'],r['response'][-100:]) for r,a,b in zip(rows,S,V) if b and not a][:2]
    print(f.parts[-4],f.parts[-3],f.stem, round(100*sum(S)/len(S),2), round(100*sum(V)/len(V),2), d, up)
print(ev,evb)
