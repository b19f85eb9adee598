package unwind

// functionAlign is the alignment of functions in optimised code, in bytes. The method prepared looks for a function
// that begins at a return address only if the address has this alignment.
const functionAlign = 16

// prepared reports whether the frame is the base of a coroutine's stack that makecontext or a similar function has
// written. Its return address is the entry of a function, for example the C library's __start_context, and no call
// precedes the address. This function has no caller, so the stack ends there.
func (w *walk) prepared(frame *Frame) bool {
	if frame.Exact || frame.PC%functionAlign != 0 {
		return false
	}
	module, ok := w.find(frame.PC)
	if !ok || module.CFI == nil {
		return false
	}
	fde, err := module.CFI.Find(frame.PC - module.Bias)
	return err == nil && fde.Start == frame.PC-module.Bias && !fde.Signal && w.calls(frame.PC, 0) == refuted
}

// stepPrepared ends the walk at the base of a coroutine's stack.
func (w *walk) stepPrepared(frame *Frame) (Frame, Stop) {
	frame.Exact = true // PC is the function's entry, so PC-1 would be in another function
	return Frame{}, Stop{Reason: EndOfStack}
}
