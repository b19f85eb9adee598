package capture

// PlanStack lets the tests read a stack with the layouts of other versions.
//
//nolint:gochecknoglobals // for tests
var PlanStack = (*Capturer).planStack
