package golang

import (
	"debug/dwarf"
	"fmt"

	"pg_stat_backtrace/unwind/elfimage"
)

// LayoutFrom reads the offsets of a Layout from a program's debugging information. The error is ErrRuntimeVersion if
// the program has no debugging information, or if the information does not describe the structures.
func LayoutFrom(m *elfimage.Image) (Layout, error) {
	data, err := debugInfo(m)
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrRuntimeVersion, err)
	}
	fields := make(map[string]int)
	for r, left := data.Reader(), 3; left > 0; {
		e, err := r.Next()
		if err != nil || e == nil {
			return Layout{}, fmt.Errorf("%w: the debugging information does not describe goroutines", ErrRuntimeVersion)
		}
		if e.Tag != dwarf.TagStructType {
			if e.Tag != dwarf.TagCompileUnit {
				skipChildren(r, e)
			}
			continue
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if name != "runtime.g" && name != "runtime.m" && name != "runtime.gobuf" || !e.Children {
			skipChildren(r, e)
			continue
		}
		left--
		for {
			f, err := r.Next()
			if err != nil || f == nil || f.Tag == 0 {
				break
			}
			field, _ := f.Val(dwarf.AttrName).(string)
			if off, ok := f.Val(dwarf.AttrDataMemberLoc).(int64); ok && off >= 0 && off < 1<<12 {
				fields[name[len("runtime."):]+"."+field] = int(off)
			}
			skipChildren(r, f)
		}
	}
	return layoutOf(fields)
}

// skipChildren skips the children of the entry e, which r has read last. The method SkipChildren of debug/dwarf is
// recursive: a hostile file can nest entries until the stack has no more room, which ends the program.
func skipChildren(r *dwarf.Reader, e *dwarf.Entry) {
	if !e.Children {
		return
	}
	for depth := 1; depth > 0; {
		child, err := r.Next()
		switch {
		case err != nil || child == nil:
			return // the next call of r.Next returns the same
		case child.Tag == 0:
			depth--
		case child.Children:
			depth++
		}
	}
}

// layoutOf makes a Layout of the fields' offsets. The error is ErrRuntimeVersion if a field is missing or has an
// unexpected offset.
func layoutOf(fields map[string]int) (Layout, error) {
	for name, off := range map[string]int{
		"g.stack": offStackLow, "g.m": offThread, "g.sched": offSP, "gobuf.sp": 0, "gobuf.pc": offPC - offSP,
		"gobuf.g": offSelf - offSP,
	} {
		if got, ok := fields[name]; !ok || got != off {
			return Layout{}, fmt.Errorf("%w: %s at %d", ErrRuntimeVersion, name, got)
		}
	}
	for _, name := range []string{
		"g.syscallsp", "g.syscallpc", "g.atomicstatus", "g.goid", "g.waitreason", "g.lockedm", "m.procid", "m.curg",
		"gobuf.bp", "gobuf.lr",
	} {
		if _, ok := fields[name]; !ok {
			return Layout{}, fmt.Errorf("%w: no %s", ErrRuntimeVersion, name)
		}
	}
	if fields["m.procid"]+8 > ThreadSize || fields["m.curg"]+8 > ThreadSize {
		return Layout{}, fmt.Errorf("%w: threads have another shape", ErrRuntimeVersion)
	}
	return Layout{
		BP: offSP + fields["gobuf.bp"], LR: offSP + fields["gobuf.lr"],
		SyscallSP: fields["g.syscallsp"], SyscallPC: fields["g.syscallpc"], SyscallBP: fields["g.syscallbp"],
		Status: fields["g.atomicstatus"], ID: fields["g.goid"], Reason: fields["g.waitreason"],
		Locked: fields["g.lockedm"], Parent: fields["g.parentGoid"], MadeAt: fields["g.gopc"],
		ThreadID: fields["m.procid"], Current: fields["m.curg"],
	}, nil
}

// debugInfo opens the program's debugging information, with the sections that describe types.
func debugInfo(m *elfimage.Image) (*dwarf.Data, error) {
	section := func(name string) []byte {
		data, _, err := m.Section(name)
		if err != nil {
			return nil
		}
		return data
	}
	info, _, err := m.Section(".debug_info")
	if err != nil {
		return nil, err
	}
	data, err := dwarf.New(section(".debug_abbrev"), nil, nil, info, section(".debug_line"), nil,
		section(".debug_ranges"), section(".debug_str"))
	if err != nil {
		return nil, err
	}
	for _, name := range []string{".debug_addr", ".debug_line_str", ".debug_str_offsets", ".debug_rnglists"} {
		if err := data.AddSection(name, section(name)); err != nil {
			return nil, err
		}
	}
	return data, nil
}
