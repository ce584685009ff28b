for i in $(seq 130); do [ -e /root/plans80.done ] && break; sleep 1; done
