package epilogue

// comesBack reports whether a function that begins at an address may return to its caller; nested is how many calls it
// lies within those that are being looked at. What cannot be seen not to return does.
func (w *follower) comesBack(entry uint64, nested int) bool {
	if known, ok := w.back[entry]; ok {
		return known
	}
	if nested >= maxNested {
		return true // not remembered: with fewer calls around it more can be seen
	}
	if w.back == nil {
		w.back = make(map[uint64]bool)
	}
	w.back[entry] = true // for those who ask meanwhile
	back := w.hasReturn(entry, nested)
	w.back[entry] = back
	return back
}

func (w *follower) hasReturn(entry uint64, nested int) bool {
	met := map[uint64]bool{entry: true}
	todo := []uint64{entry}
	reach := func(addr uint64) {
		if !met[addr] {
			met[addr] = true
			todo = append(todo, addr)
		}
	}
	for len(todo) > 0 {
		addr := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		x, err := w.decode(addr)
		if err != nil || len(met) > maxCalled {
			return true
		}
		f, to := x.flow()
		switch f {
		case returns, lost:
			return true
		case ends:
		case jump:
			reach(to)
		case branch:
			reach(to)
			reach(x.next)
		case calls:
			if to == 0 || w.comesBack(to, nested+1) {
				reach(x.next)
			}
		case on:
			reach(x.next)
		}
	}
	return false
}
