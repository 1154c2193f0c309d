package lock

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a wait or a lock leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
