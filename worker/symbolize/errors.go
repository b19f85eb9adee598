package symbolize

import "errors"

// ErrCoreFile means that a file has the memory of a process instead of a program's code.
var ErrCoreFile = errors.New("it is a core file")

// ErrArchitecture means that this build knows no registers for the host.
var ErrArchitecture = errors.New("no unwinder for this processor architecture")
