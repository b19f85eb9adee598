package sampler

//go:generate go tool bpf2go -go-package sampler -target amd64 -type sample_target -type stack_sample -type cpu_state -type cpu_request sampler sampler.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror

const supported = true

// load loads the program for so many processors, with an area of so many bytes for stacks of each.
func load(processors, area int) (objects, error) {
	spec, err := loadSampler()
	if err != nil {
		return objects{}, loadError("read a program", err)
	}
	for _, name := range []string{"processors", "stacks", "clocks", "wakeups"} {
		spec.Maps[name].MaxEntries = uint32(processors)
	}
	spec.Maps["stacks"].ValueSize = uint32(area)
	if err := spec.Variables["stack_area"].Set(uint64(area)); err != nil {
		return objects{}, loadError("set a variable", err)
	}
	var o samplerObjects
	if err := spec.LoadAndAssign(&o, nil); err != nil {
		return objects{}, loadError("load a program", err)
	}
	return objects{
		processors: o.Processors, stacks: o.Stacks, wakeups: o.Wakeups,
		start: o.StartTimer, stop: o.StopTimer, read: o.ReadWanted, close: o.Close,
	}, nil
}
