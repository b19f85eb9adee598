package naming

import "pg_stat_backtrace/unwind"

func note(f *unwind.Frame) string {
	switch {
	case f.Signal:
		return "signal handler called"
	case f.Method == unwind.ByFramePointer:
		return "by frame pointer"
	case f.Method == unwind.ByRecovery:
		return "by recovered frame pointer"
	case f.Method == unwind.ByReturnAddress:
		return "caller of a bad address"
	case f.Method == unwind.ByReturnRegister:
		return "by return register"
	case f.Method == unwind.ByInstructions:
		return "by instructions"
	case f.Method == unwind.ByReturnProbe:
		return "past a return probe"
	case f.Method == unwind.ByCall:
		return "by its call"
	default:
		return ""
	}
}
