cp carry/* $HOME/pieces/ && tail -1 $HOME/red.log && tail -1 $HOME/pool.log
