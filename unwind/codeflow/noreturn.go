package codeflow

// comesBack reports whether the function that begins at an address may return to its caller. nested is the number of
// calls under analysis in which this call is nested. The result is false only if the analysis proves that the function
// never returns.
func (w *follower) comesBack(entry uint64, nested int) bool {
	if back, ok := w.back[entry]; ok {
		w.cut = w.cut || w.looking[entry]
		return back
	}
	if back, ok := w.code.Returns(entry); ok {
		return back
	}
	if nested >= maxNested || w.looked >= maxLooked || *w.budget <= 0 {
		w.cut = true
		return true
	}
	if w.back == nil {
		w.back, w.looking = make(map[uint64]bool), make(map[uint64]bool)
	}
	before := w.cut
	w.cut = false
	w.back[entry], w.looking[entry] = true, true // result for recursive calls
	back := w.hasReturn(entry, nested)
	w.back[entry] = back
	delete(w.looking, entry)
	// The result is not stored if a limit has cut the analysis: another analysis, with less nesting or a larger budget,
	// may prove more.
	if !back || !w.cut || nested == 0 && *w.budget > 0 {
		w.code.Remember(entry, back)
	}
	w.cut = w.cut || before
	return back
}

// hasReturn reports whether a path through the function at entry leads to a return, or to code that this analysis does
// not follow. It is also true if an instruction cannot be decoded, or if a limit is exceeded.
func (w *follower) hasReturn(entry uint64, nested int) bool {
	met := map[uint64]bool{entry: true}
	todo := []uint64{entry}
	reach := func(addr uint64) {
		if !met[addr] {
			met[addr] = true
			todo = append(todo, addr)
		}
	}
	var x instruction
	for len(todo) > 0 {
		addr := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		err := w.decode(addr, &x)
		if w.looked++; err != nil || len(met) > maxCalled || w.looked > maxLooked || *w.budget < 0 {
			w.cut = w.cut || err == nil
			return true
		}
		switch x.flow {
		case returns, away, lost:
			return true
		case ends:
		case jump:
			if back, known := w.code.Returns(x.to); known && w.code.Stub(x.to) {
				if back {
					return true
				}
				continue
			}
			reach(x.to)
		case branch:
			reach(x.to)
			reach(x.next)
		case calls:
			if !w.code.Ends(x.next) && (x.to == 0 || w.comesBack(x.to, nested+1)) {
				reach(x.next)
			}
		case on:
			reach(x.next)
		}
	}
	return false
}
