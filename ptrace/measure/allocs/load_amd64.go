package allocs

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

//go:generate go tool bpf2go -go-package allocs -target amd64 -no-global-types -type alloc_block -type alloc_sums -type alloc_call -type alloc_stack -type alloc_code -type alloc_counters allocs allocs.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror

// load loads the programs, with the sizes and constants of c.
func load(c config) (objects, error) {
	_ = rlimit.RemoveMemlock() // a refusal shows at the load
	spec, err := loadAllocs()
	if err != nil {
		return objects{}, loadError("read a program", err)
	}
	spec.Maps[allocsMapBlocks].MaxEntries = uint32(c.MaxBlocks)
	spec.Maps[allocsMapSums].MaxEntries = uint32(c.MaxPaths) + 1
	for name, value := range map[string]any{
		allocsVarStackEnd: c.StackEnd, allocsVarLibraryStart: c.LibraryStart,
		allocsVarLibrarySize: c.LibrarySize, allocsVarHasHeaders: c.HasHeaders,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return objects{}, loadError("set a variable", err)
		}
	}
	for _, name := range []string{allocsProgEntered, allocsProgReturned} {
		spec.Programs[name].AttachType = ebpf.AttachTraceUprobeMulti
	}
	var o allocsObjects
	if err := spec.LoadAndAssign(&o, nil); err != nil {
		return objects{}, loadError("load a program", err)
	}
	return objects{
		blocks: o.Blocks, sums: o.Sums, code: o.Code, counters: o.Counters, stacks: o.Stacks, active: o.Active,
		entered: o.Entered, returned: o.Returned, exited: o.Exited, close: o.Close,
	}, nil
}
