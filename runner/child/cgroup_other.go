//go:build unix && !linux

package child

import (
	"os"
	"syscall"
)

// There are no control groups here.

func ownCgroup() string                        { return "" }
func newCgroup(string) string                  { return "" }
func makeCgroup(string) *os.File               { return nil }
func setCgroup(*syscall.SysProcAttr, *os.File) {}
func killCgroup(string)                        {}
func removeCgroup(string)                      {}
