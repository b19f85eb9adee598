package clusterbpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

//go:generate go tool bpf2go -go-package clusterbpf -target amd64 -no-global-types -type head -type record -type level -type process -type wait_key -type wait_time cluster cluster.bpf.c -- -I../../bpf/headers -O2 -mcpu=v3 -Wall -Werror

// load loads the programs.
func load(s *Server, o *Options, processors int) (objects, error) {
	spec, err := loadCluster()
	if err != nil {
		return objects{}, loadError("read a program", err)
	}
	spec.Maps["ring"].MaxEntries = uint32(o.RingSize)
	spec.Maps["scratch"].MaxEntries = uint32(processors) + 1
	spec.Maps["processes"].MaxEntries = uint32(o.Processes)
	for name, value := range map[string]any{
		"postmaster": uint32(s.Postmaster), "wait_pointer": s.WaitPointer, "status_pointer": s.Status,
		"worker_pointer": s.Worker, "worker_type": uint32(s.WorkerType), "worker_offset": uint32(s.WorkerKind),
		"type_variable": s.TypeVariable, "port_pointer": s.Port, "type_offset": uint32(s.Type),
		"database_offset": uint32(s.Database),
		"user_offset":     uint32(s.User), "state_offset": uint32(s.State), "name_offset": uint32(s.Name),
		"query_offset": uint32(s.QueryID), "port_database": uint32(s.PortDatabase), "port_user": uint32(s.PortUser),
		"context_pointer": s.Context, "statement_offset": uint32(s.Statement), "signature_offset": uint32(s.Signature),
		"red_zone": uint32(o.RedZone), "processors": uint32(processors),
		"stack_period": uint64(o.StackPeriod), "stack_spacing": uint64(o.StackSpacing),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return objects{}, fmt.Errorf("set %s: %w", name, err)
		}
	}
	// Kernels that refuse read_sleeper are older than those on which the others are tested.
	keep := map[string]bool{
		"on_clock": o.Clock, "on_switch": o.Switches, "on_exit": o.Switches, "read_sleeper": true,
		"note_delay": o.Switches,
	}
	for name := range spec.Programs {
		if !keep[name] {
			delete(spec.Programs, name)
		}
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return objects{}, loadError("load a program", err)
	}
	defer c.Close() // of what this function does not take over
	var m clusterMaps
	var v clusterVariables
	if err := c.Assign(&m); err != nil {
		return objects{}, loadError("make tables", err)
	}
	if err := c.Assign(&v); err != nil {
		_ = m.Close()
		return objects{}, loadError("make variables", err)
	}
	return objects{
		ring: m.Ring, processes: m.Processes, waits: m.WaitTimes, counters: m.Counters,
		attached: v.Attached, until: v.Until,
		clock: c.DetachProgram("on_clock"), change: c.DetachProgram("on_switch"), exit: c.DetachProgram("on_exit"),
		sleeper: c.DetachProgram("read_sleeper"), delay: c.DetachProgram("note_delay"), close: m.Close,
	}, nil
}
