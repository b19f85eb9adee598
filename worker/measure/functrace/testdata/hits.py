# Commands for gdb -x: print the stack at each hit of an address, as program counters, until there are enough of them.
# The environment has ADDRESS, HITS, OUTPUT (the stacks, a line each) and READY (a file that is made when the breakpoint
# is in place).
import os

import gdb

gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
gdb.execute("handle SIGUSR1 SIGUSR2 SIGALRM SIGURG nostop noprint pass")
point = gdb.Breakpoint("*" + os.environ["ADDRESS"])
point.silent = True
output = open(os.environ["OUTPUT"], "w")
open(os.environ["READY"], "w").close()
for _ in range(int(os.environ["HITS"])):
    gdb.execute("continue", to_string=True)
    frame = gdb.newest_frame()
    pcs = []
    while frame is not None and frame.is_valid() and len(pcs) < 250:
        if frame.type() != gdb.INLINE_FRAME:
            pcs.append("%x" % frame.pc())
        frame = frame.older()
    output.write(" ".join(pcs) + "\n")
output.close()
point.delete()
gdb.execute("detach")
gdb.execute("quit")
