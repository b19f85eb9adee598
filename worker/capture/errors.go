package capture

import "errors"

// ErrArchitecture means that this build knows no registers for the host.
var ErrArchitecture = errors.New("no unwinder for this processor architecture")
