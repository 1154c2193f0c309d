#include "textflag.h"

// noteSender is a signal handler. It gets the signal in R0, its siginfo in R1, the context in R2,
// and leaves all three as they are for the handler to which it jumps.
TEXT ·noteSender(SB), NOSPLIT|NOFRAME, $0
	MOVW 8(R1), R3 // si_code
	MOVD $·senders(SB), R4
	ADD  R0<<2, R4, R4
	MOVW R3, (R4)
	MOVD ·goHandler(SB), R3
	JMP  (R3)

DATA ·noteSenderAddress(SB)/8, $·noteSender(SB)
GLOBL ·noteSenderAddress(SB), NOPTR, $8
