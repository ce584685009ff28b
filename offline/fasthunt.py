import sys, time, random
from concurrent.futures import Future
from equipoise.study.redteam import attack as A, graders, grammar
class Here:
    mark="\\boxed"
    def __init__(self): self.f=graders.resolve("math")
    def submit(self,p,r,row,seconds=10.0):
        fut=Future(); fut.set_result(self.f(p,r,row)); return fut
seed,minutes=int(sys.argv[1]),float(sys.argv[2])
at=A.Attack(Here(), time.monotonic()+60*minutes)
def say(e): print(e.tried, e.why, repr(e.minimal), e.truth, flush=True)
at.findings.say=say
A.random_search(at, A.make_problems(512,seed,"\\boxed"), random.Random(seed), time.monotonic()+60*minutes)
print("done", seed, at.findings.tried, len(at.findings.shapes), at.findings.honest, len(at.findings.clusters))
