# Run by gdb. For each process id on standard input it attaches the process and prints "thread TID" and a line
# "PC NAME" for every frame of each thread, innermost first, then "end REASON". It detaches, and prints "done". Left out
# are inlined functions, which have no frame, and callers that gdb infers because their last instruction was a jump to
# the function above.
import os
import sys

import gdb

for setting in "backtrace past-main on", "backtrace limit unlimited", "width 0", "confirm off":
    gdb.execute("set " + setting)
# gdb forgets a library's symbols with the last inferior that uses it. The second inferior has no process and keeps the
# libraries of all processes, so that gdb reads each library once.
gdb.execute("add-inferior", to_string=True)
kept = set()


def show_frames():
    for thread in sorted(gdb.selected_inferior().threads(), key=lambda t: t.ptid[1]):
        thread.switch()
        print("thread", thread.ptid[1])
        frame = gdb.newest_frame()
        reason = "?"
        while frame is not None:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                print("0x%x" % frame.pc(), frame.name() or "??")
            reason = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
            try:
                frame = frame.older()
            except gdb.error as error:
                reason = str(error)
                break
        print("end", reason.replace("\n", " "))


def keep_libraries():
    program = gdb.current_progspace().filename
    names = {o.filename for o in gdb.objfiles() if o.owner is None and o.filename and os.path.isfile(o.filename)}
    names -= kept | {program}
    kept.update(names)
    if names:
        gdb.execute("inferior 2", to_string=True)
        for name in names:
            gdb.execute("add-symbol-file " + name, to_string=True)
        gdb.execute("inferior 1", to_string=True)


last = None
for line in sys.stdin:
    try:
        pid = int(line)
        program = os.stat("/proc/%d/exe" % pid)
        if last != (program.st_dev, program.st_ino):
            gdb.execute("file", to_string=True)  # forgets the previous program
        last = (program.st_dev, program.st_ino)
        gdb.execute("attach %d" % pid, to_string=True)
        try:
            show_frames()
            keep_libraries()
        finally:
            gdb.execute("detach", to_string=True)
    except (gdb.error, OSError) as error:
        print("failed", str(error).replace("\n", " "))
    print("done")
    gdb.flush()
