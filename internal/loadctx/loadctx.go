// Package loadctx tells this module's packages the context of the call that they run in,
// if all they have is its sample.
package loadctx

import "context"

// Of returns the context of the call of Load or LoadBatch that a *nwt.Sample is loaded by.
// Package nwt sets it.
var Of func(sample any) context.Context
