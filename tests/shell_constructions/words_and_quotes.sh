python3 a=1 'b="x y"' "c='z'" d\ e f"g h"'i' "" $'j\tk' "l\$m" n#o
