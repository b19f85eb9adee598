# Run by gdb in a process that it has attached: prints "thread TID" and a line "PC KIND NAME" for every frame of each
# thread, innermost first, and "end REASON". Left out are what is no physical frame: functions inlined into their caller, and
# callers that gdb infers because their last act was a jump to the function above.
import gdb

gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace limit unlimited")
gdb.execute("set width 0")
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
