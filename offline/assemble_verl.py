import os,zipfile,shutil,json
wh='$BUNDLE/whv'; out='$BUNDLE/packv'
shutil.rmtree(out,ignore_errors=True)
drop={'grpcio','tensorboard','tensorboard_data_server','markdown','werkzeug','markupsafe','absl_py'}
fallback={'msgpack','importlib_metadata','zipp','orjson','pybind11'}
own={'transformers':'hf','tokenizers':'hf'}
def put(whl,dest):
    z=zipfile.ZipFile(f'{wh}/{whl}')
    for i in z.infolist():
        n=i.filename
        if n.endswith('/'): continue
        parts=n.split('/')
        if parts[0].endswith('.data'):
            if parts[1] in('purelib','platlib'): n='/'.join(parts[2:])
            else: continue
        if n.startswith(('ray/jars/','ray/rllib/','ray/dashboard/client/build/','ray/cpp/','tests/','scripts/')): continue
        if n.startswith('ray/') and '/tests/' in n: continue
        if n.endswith(('.pyi','.js.map')): continue
        p=f'{dest}/{n}'; os.makedirs(os.path.dirname(p),exist_ok=True)
        with z.open(i) as s,open(p,'wb') as d: shutil.copyfileobj(s,d)
        mode=(i.external_attr>>16)&0o777
        if mode&0o111 or n.endswith(('/raylet','/gcs_server')): os.chmod(p,0o755)
for whl in sorted(os.listdir(wh)):
    k=whl.split('-')[0].lower()
    if k in drop: continue
    if k in fallback: put(whl,f'{out}/fallback/{k}')
    elif k in own: put(whl,f'{out}/{own[k]}')
    else: put(whl,f'{out}/site')
