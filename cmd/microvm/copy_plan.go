package main

import (
	"iter"
	"path"
)

// largeFile is the size from which on a file is sent by itself, so that what
// breaks off goes on inside it, and largePart is how much of it is sent at once.
// Tests make them small.
var (
	largeFile int64 = 64 << 20
	largePart int64 = 8 << 20
)

// plan is what is to be sent into a sandbox.
type plan struct {
	large   []entry // each by itself
	archive []entry // together, directories before what is in them
	files   int64   // in both
	bytes   int64   // their content
	same    int64   // files and links that are there as they are here
}

// planFor plans what of a tree is not in a sandbox as it is here. The tree and
// what is there come in the order of lists. isSame compares two entries of a path;
// byItself says whether a file is sent alone.
func planFor(entries []entry, there iter.Seq2[entry, error], isSame func(here, there entry) bool, byItself func(entry) bool) (*plan, error) {
	need := make([]bool, len(entries))
	for i := range need {
		need[i] = true
	}
	i := 0
	for other, err := range there {
		if err != nil {
			return nil, err
		}
		for i < len(entries) && comparePaths(entries[i].path, other.path) < 0 {
			i++
		}
		if i < len(entries) && entries[i].path == other.path {
			need[i] = !isSame(entries[i], other)
			i++
		}
	}
	return planOf(entries, need, byItself), nil
}

func planOf(entries []entry, need []bool, byItself func(entry) bool) *plan {
	p := new(plan)
	dirs := map[string]int{}
	for i, e := range entries {
		if e.dir() {
			dirs[e.path] = i
		}
	}
	// What is put into a directory changes its time, so it is sent once more.
	for i, e := range entries {
		if need[i] {
			if parent, ok := dirs[path.Dir(e.path)]; ok {
				need[parent] = true
			}
		}
	}
	for i, e := range entries {
		switch {
		case !need[i] && !e.dir():
			p.same++
		case !need[i]:
		case byItself(e):
			p.large = append(p.large, e)
		default:
			p.archive = append(p.archive, e)
		}
		if need[i] && !e.dir() {
			p.files++
			if e.file() {
				p.bytes += e.size
			}
		}
	}
	return p
}

// left is a measure of what is still to do.
func (p *plan) left() int64 { return p.bytes + int64(len(p.large)+len(p.archive)) }
