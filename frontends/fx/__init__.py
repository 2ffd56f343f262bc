"""Import of PyTorch models (ExportedProgram, torch.fx GraphModule) into a core Graph."""
