package symbolize

import "errors"

// ErrCoreFile means that a file is a core file and not a program or library.
var ErrCoreFile = errors.New("it is a core file")

// ErrArchitecture means that this build has no unwinder for the host's processor.
var ErrArchitecture = errors.New("no unwinder for this processor architecture")
