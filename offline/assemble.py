import os,re,zipfile,shutil,sys,json
wh='$BUNDLE/wh'; out='$BUNDLE/pack'
never={'vllm','numpy','torch','triton','tokenizers','transformers','safetensors','huggingface_hub','hf_xet'}
drop={'grpcio','cryptography','cffi','pycparser','pycountry','googleapis_common_protos','sympy','mpmath','jinja2','markupsafe','setuptools'}|{f.split('-')[0] for f in os.listdir(wh) if f.startswith('opentelemetry')}
fallback={'pillow','tiktoken','regex','pyyaml','requests','tqdm','psutil','protobuf','filelock','fsspec','packaging','urllib3','certifi','idna','charset_normalizer','httpx','httpcore','h11','anyio','sniffio','attrs','click','six','aiohttp','aiosignal','aiohappyeyeballs','frozenlist','multidict','propcache','yarl','jinja2','markupsafe','sympy','mpmath','pandas','python_dateutil','setuptools','einops','antlr4_python3_runtime','latex2sympy2_extended','dill','multiprocess','xxhash','cloudpickle','cachetools','datasets','jmespath','jsonschema','jsonschema_specifications','referencing','rpds_py','typing_extensions','loguru'}
names={}
def put(whl,dest):
    z=zipfile.ZipFile(f'{wh}/{whl}')
    for i in z.infolist():
        n=i.filename
        if n.endswith('/') : continue
        parts=n.split('/')
        if parts[0].endswith('.data'):
            if parts[1] in('purelib','platlib'): n='/'.join(parts[2:])
            else: continue
        if '/tests/' in n and n.split('/')[0] in('sympy','mpmath','pandas','aiohttp','numpy'): continue
        if n.startswith('setuptools/') and n.endswith('.exe'): continue
        if n.endswith(('.pyi','.c','.pyx','.pxd','.h')) and n.split('/')[0] not in('torch',) : continue
        if n.startswith('mistral_common/data/') and n.endswith(('.json','.model.v1','.model.v2','.model.v3','.model')) : continue
        p=f'{dest}/{n}'; os.makedirs(os.path.dirname(p),exist_ok=True)
        with z.open(i) as s,open(p,'wb') as d: shutil.copyfileobj(s,d)
shutil.rmtree(out,ignore_errors=True)
for whl in sorted(os.listdir(wh)):
    n,v=whl.split('-')[:2]; k=n.lower()
    if k in never or k in drop: continue
    if k in fallback: put(whl,f'{out}/fallback/{k}')
    else: put(whl,f'{out}/site')
    names[k]=v
json.dump(names,open('$BUNDLE/names.json','w'),indent=0)
